"""Completion by models: predict what absent clients would have answered, then measure real coalitions.

The door of this room: nobody outside imports from deeper in it.
"""

from fedworth.completion.models.complete import complete_by_models as complete_by_models
from fedworth.completion.models.completion import ModelCompletion as ModelCompletion
from fedworth.completion.models.completion import model_completion_from as model_completion_from
from fedworth.completion.models.completion import save_model_completion as save_model_completion
from fedworth.completion.models.played import predicted_game as predicted_game
from fedworth.completion.models.predicted import PredictedLedger as PredictedLedger
from fedworth.completion.models.predicted import predict_absent as predict_absent
