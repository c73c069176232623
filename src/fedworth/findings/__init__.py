"""Oddities: what clients' answers show that a reader should know, with how sure it is and what that rests on.

The door of this room: nobody outside imports from deeper in it.
"""

from fedworth.findings.finding import LEAST_SURE as LEAST_SURE
from fedworth.findings.finding import OF_ANSWERS as OF_ANSWERS
from fedworth.findings.finding import OF_VALUES as OF_VALUES
from fedworth.findings.finding import Finding as Finding
from fedworth.findings.finding import FindingKind as FindingKind
from fedworth.findings.finding import finding_from as finding_from
from fedworth.findings.finding import sure_of as sure_of
from fedworth.findings.sightings import findings as findings
