"""Names of choices that the command line offers, and the check of a name.

A choice is a `Literal`, so a type checker finds a wrong name in a program, and `checked_name` finds any other. They
stand here so that the command line can check names before it loads anything else. Open lists, such as losses, are
checked where they are.
"""

from typing import Any, Literal, get_args

from fedworth.errors import unknown_name

Aggregation = Literal["uniform", "samples"]
"""How the server averaged: equally, or weighted by samples."""

Weighting = Literal["uniform", "samples", "fixed"]
"""How a coalition's models are averaged."""

Measure = str
"""`loss`, or a measure that goes with the task's loss, such as `accuracy`: an open list, which the task checks."""

Interval = Literal["new-data", "test-set"]
"""What intervals are for: the value on data like the test set, or on exactly these test samples."""

GroupShares = dict[str, float] | Literal["equal"]
"""Shares of groups in a population: by name, or all equal."""

OracleName = Literal["fast", "loop"]
EngineName = Literal["local", "ray"]

PenaltyKind = Literal["counts", "uniform"]

Unseen = Literal["refuse", "zero"]
"""How a coalition that no round has shown is treated."""

Clip = Literal["median"]
"""To which length updates are rescaled before they are valued."""

RewardRule = Literal["positive", "floor", "lower", "softmax", "cost"]
"""Rules to split a pool of money."""

DatasetName = Literal["synthetic", "synthetic-iid", "regression", "digits", "mnist", "fashion-mnist", "cifar10"]
PartitionName = Literal["iid", "two-class", "natural", "dirichlet", "quantity", "feature", "vertical"]
ModelName = Literal["logistic", "mlp", "cnn", "vgg16", "vgg16-bn", "vgg16-gn"]
Combine = Literal["concatenation", "sum"]
"""How the server of a vertical federation makes one embedding of those that clients send of a sample."""

UnsentEmbeddings = Literal["smooth", "low-rank", "last"]
"""How embeddings of samples outside of a batch are estimated."""

Dtype = Literal["float32", "float64"]
OptimizerName = Literal["sgd", "adam"]
ScheduleName = Literal["constant", "decay", "proposition-2", "proposition-2-li"]


def checked_name(what: str, choice: Any, found: object) -> Any:
    """The name, if it is one of the choice's; otherwise an error with the nearest one."""
    if found not in get_args(choice):
        raise unknown_name(what, str(found), get_args(choice))
    return found
