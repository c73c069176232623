"""Completion by models: predict the models of absent clients, then measure real coalitions of them."""

from fedworth.completion.models.complete import ModelCompletion as ModelCompletion
from fedworth.completion.models.complete import NothingAbsent as NothingAbsent
from fedworth.completion.models.complete import PredictedGame as PredictedGame
from fedworth.completion.models.complete import complete_by_models as complete_by_models
