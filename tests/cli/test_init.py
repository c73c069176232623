"""fedworth init looks at a project without running it, writes a task file that works, and shows where lines go."""

import json
from pathlib import Path

import pytest
import torch

import fedworth
from fedworth.cli.main import main
from fedworth.errors import FedworthError

TASK_OF_APP = '''
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()


class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.layer = nn.Linear(4, width)

    def forward(self, inputs):
        return self.layer(inputs)


def load_data(partition_id, num_partitions):
    """A member's own."""


def load_centralized_dataset():
    inputs = torch.arange(24.0).reshape(6, 4)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    return [{"img": inputs[:4], "label": labels[:4]}, {"img": inputs[4:], "label": labels[4:]}]
'''
SERVER = """
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg()
    result = strategy.start(grid=grid, initial_arrays=None, num_rounds=3)
"""
CLIENT = """
from flwr.clientapp import ClientApp

app = ClientApp()
"""
SETTINGS = """
[tool.flwr.app.components]
serverapp = "my_app.server_app:app"
clientapp = "my_app.client_app:app"
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A Flower app in the usual layout; its servers and clients cannot even be imported here."""
    folder = tmp_path / "quickstart"
    package = folder / "my_app"
    package.mkdir(parents=True)
    for name, text in (("__init__", ""), ("task", TASK_OF_APP), ("server_app", SERVER), ("client_app", CLIENT)):
        (package / f"{name}.py").write_text(text)
    (folder / "pyproject.toml").write_text(SETTINGS)
    (folder / "broken.py").write_text("def :")
    (folder / "harm.py").write_text("raise SystemExit('this was run')\n")
    monkeypatch.chdir(folder)
    return folder


def test_a_flower_app_gets_a_task_that_works_and_two_lines(project, capsys):
    assert main(["init", "flower"]) == 0
    said = capsys.readouterr().out
    assert "Net of my_app.task" in said
    assert "load_centralized_dataset of my_app.task" in said
    assert "my_app/server_app.py, line 11" in said
    assert f'fedworth.flower.record(grid, ledger="{project}.ledger", strategy=strategy)' in said
    assert "my_app/client_app.py, line 4" in said
    assert "mods=[fedworth.flower.identity]" in said
    task = fedworth.Task.load("mytask.py:task")
    assert task.inputs.shape == (6, 4)
    model = {"layer.weight": torch.zeros(3, 4), "layer.bias": torch.zeros(3)}
    recorder = fedworth.record_into("../l", track="prometheus:../f.prom", task=task)
    recorder.start_round(model, asked=["a"])
    recorder.client_model("a", model, 1)
    recorder.end_round()
    recorder.close(model)
    assert 'fedworth_value{client="a"} 0.0' in Path("../f.prom").read_text()


def test_an_app_of_the_old_api_is_recorded_at_its_strategy(project, capsys):
    old = "app = ServerApp(server_fn=make)\ndef make(context):\n    return ServerAppComponents(strategy=strategy)\n"
    (project / "my_app" / "server_app.py").write_text(old)
    assert main(["init", "flower", "--json"]) == 0
    server, _ = json.loads(capsys.readouterr().out)["lines"]
    assert (server["file"], server["number"]) == ("my_app/server_app.py", 3)
    assert "strategy = fedworth.flower.record(strategy," in server["code"]


def test_a_recipe_is_found_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text("made = FedAvgRecipe(\n    name='x',\n)\nmade.run(env)\n")
    assert main(["init", "nvflare"]) == 0
    said = capsys.readouterr().out
    assert "job.py, line 3" in said
    assert "fedworth.nvflare.add_valuation(made, ledger=" in said


def test_what_is_not_found_is_left_open_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "loop"]) == 0
    assert capsys.readouterr().out.count("not found: name it in the file") == 2
    with pytest.raises(FedworthError, match="load your test set here"):
        fedworth.Task.load("mytask.py:task")


@pytest.mark.usefixtures("project")
def test_nothing_is_written_over(capsys):
    Path("mytask.py").write_text("mine")
    assert main(["init", "flower"]) != 0
    assert "exists already" in capsys.readouterr().err
    assert Path("mytask.py").read_text() == "mine"


@pytest.mark.parametrize("framework", ["flower", "nvflare"])
def test_a_folder_without_a_federation_is_refused_and_left_as_it_is(tmp_path, monkeypatch, capsys, framework):
    monkeypatch.chdir(tmp_path)
    assert main(["init", framework]) == 2
    assert "start it in the folder of" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_test_set_of_dictionaries_keeps_all_its_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("texts.py").write_text(
        "import torch\n"
        "class Classifier(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.head = torch.nn.Linear(4, 3)\n"
        "    def forward(self, input_ids, attention_mask):\n"
        "        return self.head(input_ids * attention_mask)\n"
        "def load_test_set():\n"
        "    words, mask, labels = torch.rand(6, 4), torch.ones(6, 4), torch.arange(6) % 3\n"
        "    return [{'input_ids': words, 'attention_mask': mask, 'labels': labels}]\n"
    )
    assert main(["init", "loop"]) == 0
    task = fedworth.Task.load("mytask.py:task")
    assert list(task.inputs) == ["input_ids", "attention_mask"]
    assert task.labels.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")  # PEFT asks transformers for it
def test_a_model_of_hugging_face_gets_a_task_with_its_own_loss_and_what_peft_exchanges(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("writers.py").write_text(
        "from peft import LoraConfig, PeftModel, get_peft_model\n"
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "def get_model() -> PeftModel:\n"
        "    config = GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)\n"
        "    adapters = LoraConfig(task_type='CAUSAL_LM', target_modules=['c_attn'], fan_in_fan_out=True)\n"
        "    return get_peft_model(GPT2LMHeadModel(config), adapters)\n"
        "def load_test_set():\n"
        "    return [{'input_ids': [1, 2, 3, 4]}, {'input_ids': [5, 6]}]\n"
    )
    assert main(["init", "loop"]) == 0
    task = fedworth.Task.load("mytask.py:task")
    assert (task.loss, task.labels.tolist()) == ("texts", [[1, 2, 3, 4], [5, 6, -100, -100]])
    assert all("lora_" in name for name in task.state)
