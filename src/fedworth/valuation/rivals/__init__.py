"""Rivals: other measures of what a client is worth, on the same ledger and the same oracle.

The door of this room: nobody outside imports from deeper in it.
"""

from fedworth.valuation.rivals.concepts import CONCEPTS as CONCEPTS
from fedworth.valuation.rivals.concepts import value_by_concept as value_by_concept
from fedworth.valuation.rivals.counted import CountedGame as CountedGame
from fedworth.valuation.rivals.drawn import draw_concept as draw_concept
from fedworth.valuation.rivals.federation import Recorded as Recorded
from fedworth.valuation.rivals.federation import recorded as recorded
from fedworth.valuation.rivals.rivals import RIVALS as RIVALS
from fedworth.valuation.rivals.rivals import RivalValuation as RivalValuation
from fedworth.valuation.rivals.rivals import value_by_rival as value_by_rival
