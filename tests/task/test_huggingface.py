"""Models of transformers with PEFT's adapters: the loss, what is exchanged, servers that average products."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedworth.errors import DataError, ModelError, RuleError, UsageError
from fedworth.ledger.ledger import Ledger
from fedworth.recording.recorder import record_into
from fedworth.task.modules import copied
from fedworth.task.rules import ProductMean
from fedworth.task.task import Task
from fedworth.valuation.federation import Federation

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")  # PEFT asks transformers

N_WORDS, N_CLASSES = 40, 3
SIZES = {"num_labels": N_CLASSES, "vocab_size": N_WORDS, "pad_token_id": 0}
LLAMA = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, **SIZES}
GPT = {"n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1, **SIZES}
BERT = {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8, **SIZES}


@cache
def libraries() -> Any:
    """Loaded by the first test that needs them, not by everyone who collects the tests."""
    import peft
    import transformers

    return SimpleNamespace(peft=peft, transformers=transformers)


def model_of(kind, config, **settings):
    found = libraries().transformers
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(found, kind)(getattr(found, config)(**settings))


def classifier(**settings):
    return model_of("DistilBertForSequenceClassification", "DistilBertConfig", **{**BERT, **settings})


def adapted(model, kind, targets, rank=2, **settings):
    peft = libraries().peft
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return peft.get_peft_model(
            model, peft.LoraConfig(task_type=kind, r=rank, target_modules=targets, lora_dropout=0.1, **settings)
        )


def adapted_classifier():
    return adapted(classifier(), "SEQ_CLS", ["q_lin", "v_lin"])


def adapted_writer():
    return adapted(model_of("GPT2LMHeadModel", "GPT2Config", **GPT), "CAUSAL_LM", ["c_attn"], fan_in_fan_out=True)


def texts(n=12, **columns):
    """Texts of 3 to 9 words, as a tokenizer leaves them beside columns that no model takes."""
    rng = np.random.default_rng(0)
    words = [rng.integers(1, N_WORDS, rng.integers(3, 10)).tolist() for _ in range(n)]
    return [{"input_ids": w, "text": "…", **{k: of(i, w) for k, of in columns.items()}} for i, w in enumerate(words)]


def with_classes():
    return texts(label=lambda i, _: i % N_CLASSES)


def with_answers():
    """The first two words are a question, which does not count."""
    return texts(labels=lambda _, words: [-100, -100, *words[2:]])


CASES = {
    "DistilBERT": (adapted_classifier, with_classes, "cross-entropy"),
    "BERT": (
        lambda: model_of(
            "BertForSequenceClassification", "BertConfig", **{**LLAMA, "max_position_embeddings": 16}
        ),
        with_classes,
        "cross-entropy",
    ),
    "Llama's classes": (
        lambda: model_of("LlamaForSequenceClassification", "LlamaConfig", **LLAMA), with_classes, "cross-entropy",
    ),
    "GPT-2": (adapted_writer, texts, "texts"),
    "Llama": (lambda: model_of("LlamaForCausalLM", "LlamaConfig", **LLAMA), with_answers, "texts"),
    "numbers": (lambda: classifier(num_labels=1), lambda: texts(label=lambda i, _: i / 3), "squared-error"),
    "flags": (
        lambda: classifier(problem_type="multi_label_classification"),
        lambda: texts(labels=lambda i, _: [1.0, 0.0, float(i % 2)]),
        "multi-label",
    ),
    "a class a word": (
        lambda: model_of("DistilBertForTokenClassification", "DistilBertConfig", **BERT),
        lambda: texts(labels=lambda _, words: [word % N_CLASSES for word in words]),
        "tokens",
    ),
}  # fmt: skip


def own_loss(model, sample):
    """What the model itself says of one sample, without padding."""
    labels = sample.get("labels", sample.get("label", sample["input_ids"]))
    with torch.no_grad():
        return float(model.eval()(input_ids=torch.tensor([sample["input_ids"]]), labels=torch.tensor([labels])).loss)


@pytest.mark.parametrize("case", CASES)
def test_the_loss_of_each_sample_is_the_models_own(case):
    made, data, name = CASES[case]
    model, samples = made(), data()
    task = Task.from_transformers(model, samples)
    assert task.loss == name
    criterion, outputs = task.criterion("loss"), task.outputs(task.state)
    expected = [own_loss(model, sample) for sample in samples]
    assert np.ptp(expected) > 1e-4
    for place, own in enumerate(expected):
        row = slice(place, place + 1)
        found = float(criterion.of(outputs[row], task.labels[row]).sum()) / criterion.n_counted(task.labels[row])
        assert found == pytest.approx(own, abs=1e-5)


def n_answers(samples):
    return [len(sample["input_ids"]) - 2 for sample in samples]


def test_every_text_counts_alike_whatever_its_length():
    model, samples = adapted_writer(), with_answers()
    task = Task.from_transformers(model, samples)
    expected = np.mean([own_loss(model, sample) for sample in samples])
    assert -float(task.criterion("loss").quality(task.outputs(task.state), task.labels)) == pytest.approx(expected)
    by_token = Task.from_transformers(model, samples, loss="next-token")
    found = -float(by_token.criterion("loss").quality(by_token.outputs(task.state), task.labels))
    assert found == pytest.approx(np.average([own_loss(model, s) for s in samples], weights=n_answers(samples)))
    assert found != pytest.approx(expected, rel=1e-4)


def test_a_model_of_many_words_gets_few_texts_at_a_time_and_gives_a_number_a_place():
    model = model_of("GPT2LMHeadModel", "GPT2Config", **{**GPT, "vocab_size": 20_000})
    task = Task.from_transformers(model, texts())
    assert task.batch_size == (1 << 23) // (task.labels.shape[1] * 20_000)
    assert task.outputs(task.state).shape == task.labels.shape
    assert model(**task.inputs).logits.shape == (*task.labels.shape, 20_000)  # the user's own model is as it was


def test_a_loader_that_pads_each_batch_gives_the_same_task():
    model, samples = adapted_classifier(), with_classes()
    whole = Task.from_transformers(model, samples)
    batches = []
    for start in range(0, len(samples), 5):
        some = samples[start : start + 5]
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(s["input_ids"]) for s in some], batch_first=True)
        batches.append(
            {"input_ids": ids, "attention_mask": ids > 0, "labels": torch.tensor([s["label"] for s in some])}
        )
    assert len({batch["input_ids"].shape[1] for batch in batches}) > 1
    again = Task.from_transformers(model, batches)
    torch.testing.assert_close(again.outputs(again.state), whole.outputs(whole.state))


def with_a_prompt():
    """PEFT's prompt tuning puts two words of its own before each text, and gives logits for them, too."""
    peft = libraries().peft
    writer = model_of("GPT2LMHeadModel", "GPT2Config", **GPT)
    return peft.get_peft_model(writer, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))


class Doubled(torch.nn.Module):
    """A model with a loss that fedworth does not know."""

    def __init__(self):
        super().__init__()
        self.inner = classifier()
        self.config = self.inner.config

    def forward(self, input_ids, attention_mask=None, labels=None):
        given = self.inner(input_ids, attention_mask)
        given.loss = None if labels is None else 2 * torch.nn.functional.cross_entropy(given.logits, labels)
        return given


@pytest.mark.parametrize(
    ("made", "data", "error", "message"),
    [
        (Doubled, with_classes, UsageError, "cross-entropy differs from it by .*give a function"),
        (
            lambda: model_of("GPT2ForSequenceClassification", "GPT2Config", **{**GPT, "pad_token_id": None}),
            with_classes, UsageError, "no loss for it .*padding token",
        ),
        (classifier, texts, UsageError, "the model has no loss for it"),
        (adapted_writer, lambda: texts(labels=lambda _, w: [w[0]] + [-100] * (len(w) - 1)), UsageError, "not finite"),
        (classifier, lambda: [{"text": "not tokenized", "label": 1}], UsageError, "no loss for it"),
        (classifier, lambda: [{"input_ids": "words", "label": 1}], DataError, "tokenize it first"),
        (with_a_prompt, texts, UsageError, r"outputs of shape \(3, 11, 40\) do not tell.*no loss takes it"),
        (classifier, list, DataError, "no samples"),
        (classifier, lambda: ["a text"], DataError, "an item is a str"),
        (classifier, lambda: [*with_classes(), {"input_ids": [1], "inputs_embeds": [0.0]}], DataError, "columns"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*")  # transformers on a label that it does not expect
def test_what_the_model_cannot_judge_is_refused(made, data, error, message):
    with pytest.raises(error, match=message):
        Task.from_transformers(made(), data())


# Federations


def sent_by(model, adapter="default"):
    """What PEFT exchanges, in tensors of its own."""
    found = libraries().peft.get_peft_model_state_dict(model, adapter_name=adapter)
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def mean(answers, weights):
    return {k: sum(w * a[k] for a, w in zip(answers, weights, strict=True)) / sum(weights) for k in answers[0]}


def products(answers, weights):
    """The mean of B A in single precision, written out, and its SVD as torch makes it."""
    made = mean(answers, weights)
    for a in [name for name in made if "lora_A" in name]:
        b = a.replace("lora_A", "lora_B")
        whole = sum(w * answer[b] @ answer[a] for answer, w in zip(answers, weights, strict=True)) / sum(weights)
        u, sizes, v = torch.linalg.svd(whole, full_matrices=False)
        rank = len(made[a])
        made[b], made[a] = u[:, :rank] * sizes[:rank], v[:rank].contiguous()
    return made


def federation(folder, model, *, server=mean, as_sent=lambda state: state, adapter="default", **how):
    """Two rounds of three clients that move what PEFT exchanges; returns the ledger and the last model."""
    state, generator = sent_by(model, adapter), torch.Generator().manual_seed(4)
    recorder = record_into(folder, **how)
    for _ in range(2):
        recorder.start_round(as_sent(state), asked=["a", "b", "c"])
        answers = [{k: t + torch.randn(t.shape, generator=generator) for k, t in state.items()} for _ in "abc"]
        for name, answer, n_samples in zip("abc", answers, (10, 20, 30), strict=True):
            recorder.client_model(name, as_sent(answer), n_samples)
        recorder.end_round()
        state = server(answers, [10, 20, 30])
    recorder.close(as_sent(state))
    return Ledger.open(folder), state


def gain(model, task, last):
    """How much the loss fell, with the last model loaded by PEFT itself."""

    def loss(of):
        with torch.no_grad():
            outputs = of.eval()(**task.inputs).logits
        return -float(task.criterion("loss").quality(outputs.double(), task.labels))

    after = copied(model)
    libraries().peft.set_peft_model_state_dict(after, last)
    return loss(model) - loss(after)


def arrays(state):
    return [tensor.numpy() for tensor in state.values()]


def as_in_module(state):
    """The names of the module's own state dict."""
    return {
        name.replace(".weight", ".default.weight") if "lora_" in name
        else name.replace("classifier.", "classifier.modules_to_save.default."): tensor
        for name, tensor in state.items()
    }  # fmt: skip


@pytest.mark.parametrize("as_sent", [dict, arrays, as_in_module])
@pytest.mark.parametrize("exchanged", [None, ("lora_", "classifier")], ids=["found", "pieces"])
def test_adapters_and_head_are_valued_however_they_are_sent(tmp_path, as_sent, exchanged):
    model = adapted_classifier()
    ledger, last = federation(tmp_path / "l", model, as_sent=as_sent)
    task = Task.from_transformers(model, with_classes(), **({} if exchanged is None else {"exchanged": exchanged}))
    valued = Federation(ledger, task).value("fedsv")
    expected = gain(model, task, last)
    assert abs(expected) > 0.01
    assert valued.values.sum() == pytest.approx(expected, abs=1e-6)


def test_a_head_that_is_not_named_is_refused_with_what_to_say(tmp_path):
    ledger, _ = federation(tmp_path / "l", adapted_classifier())
    task = Task.from_transformers(adapted_classifier(), with_classes(), exchanged="lora_")
    with pytest.raises(ModelError, match=r"name them in exchanged, too.*classifier"):
        Federation(ledger, task)


def test_the_active_adapter_of_two_is_the_one_that_is_exchanged(tmp_path):
    model, peft = adapted_writer(), libraries().peft
    model.add_adapter(
        "second", peft.LoraConfig(task_type="CAUSAL_LM", r=3, target_modules=["c_attn"], fan_in_fan_out=True)
    )
    model.set_adapter("second")
    task = Task.from_transformers(model, texts())
    assert {tensor.shape[0] for name, tensor in task.state.items() if "lora_A" in name} == {3}
    ledger, _ = federation(tmp_path / "l", model, adapter="second")
    assert np.ptp(Federation(ledger, task).value("fedsv").values) > 1e-4


@pytest.mark.parametrize("as_sent", [dict, arrays])
def test_a_server_that_averages_products_is_replayed_by_its_products(tmp_path, as_sent):
    model = adapted_classifier()
    rule = ProductMean() if as_sent is dict else ProductMean(names=tuple(sent_by(model)))
    ledger, last = federation(tmp_path / "l", model, server=products, as_sent=as_sent, rule=rule)
    task = Task.from_transformers(model, with_classes())
    valued = Federation(ledger, task).value("fedsv")
    assert valued.values.sum() == pytest.approx(gain(model, task, last), abs=1e-5)


def test_products_are_not_taken_for_means_nor_means_for_products(tmp_path):
    model = adapted_classifier()
    task = Task.from_transformers(model, with_classes())
    with pytest.raises(RuleError, match="not the weighted mean"):
        Federation(federation(tmp_path / "l", model, server=products)[0], task)
    with pytest.raises(RuleError, match="not the lora-products"):
        Federation(federation(tmp_path / "m", model, rule=ProductMean())[0], task)
