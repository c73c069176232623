"""Checking: self-tests of the values on the user's own federation.

The door of this room: nobody outside imports from deeper in it.
"""

from fedworth.pipeline.checking.check import Check as Check
from fedworth.pipeline.checking.check import check_values as check_values
from fedworth.pipeline.checking.selftests import CheckVerdict as CheckVerdict
from fedworth.pipeline.checking.selftests import SelfTest as SelfTest
