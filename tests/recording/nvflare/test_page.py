"""The how-to page on NVFlare and the README's line give the server of a job a recorder."""

import re
from pathlib import Path
from typing import Any

from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.job_config.api import FedJob

import fedworth.nvflare

ROOT = Path(__file__).parents[3]


def recorders_of(job: FedJob) -> list[Any]:
    """The components of the job's server that record."""
    server = job._deploy_map["server"]
    found = server.app_config.components.values()
    return [each for each in found if isinstance(each, fedworth.nvflare.RoundRecorder)]


def test_the_job_of_the_page_has_a_recorder():
    text = (ROOT / "docs" / "howto" / "nvflare.md").read_text()
    (block,) = re.findall(r"^```python title=\"job\.py\"\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    known: dict[str, Any] = {}
    exec(compile(block, "job.py", "exec"), known)
    assert len(recorders_of(known["job"])) == 1


def test_the_line_of_the_readme_gives_a_job_a_recorder():
    (line,) = re.findall(r"^(fedworth\.nvflare\.record.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    job = FedJob(name="my-job", min_clients=3)
    exec(compile(line, "README.md", "exec"), {"fedworth": fedworth, "job": job})
    assert len(recorders_of(job)) == 1


def test_the_lines_for_a_recipe_bring_the_task_and_a_recorder_that_tracks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mytask.py").write_text("task = None\n")
    Path("client.py").write_text("")
    text = (ROOT / "docs" / "howto" / "nvflare.md").read_text()
    (block,) = re.findall(r"^```python title=\"recipe\.py\"\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    recipe = NumpyFedAvgRecipe(name="mine", model=[[0.0]], min_clients=2, num_rounds=1, train_script="client.py")
    exec(compile(block, "recipe.py", "exec"), {"fedworth": fedworth, "recipe": recipe})
    (recorder,) = recorders_of(recipe._job)
    assert (recorder.track, recorder.task) == (["nvflare"], "mytask.py:task")
    recipe.export("jobs")
    assert [path.name for path in Path("jobs").rglob("mytask.py")] == ["mytask.py"]
