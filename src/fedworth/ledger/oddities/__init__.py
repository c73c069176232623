"""Oddities: what clients' answers show that a reader should know, with how sure it is and what that rests on.

The door of this room: nobody outside imports from deeper in it.
"""

from fedworth.ledger.oddities.finding import LEAST_SURE as LEAST_SURE
from fedworth.ledger.oddities.finding import OF_ANSWERS as OF_ANSWERS
from fedworth.ledger.oddities.finding import OF_VALUES as OF_VALUES
from fedworth.ledger.oddities.finding import Finding as Finding
from fedworth.ledger.oddities.finding import FindingKind as FindingKind
from fedworth.ledger.oddities.finding import finding_from as finding_from
from fedworth.ledger.oddities.finding import sure_of as sure_of
from fedworth.ledger.oddities.sightings import findings as findings
