"""The header and the manifest of a ledger. The door of this room: nobody outside imports from deeper in it."""

from fedworth.ledger.manifest.header import FORMAT as FORMAT
from fedworth.ledger.manifest.header import HEADER as HEADER
from fedworth.ledger.manifest.header import check_names as check_names
from fedworth.ledger.manifest.header import is_ledger as is_ledger
from fedworth.ledger.manifest.header import read_header as read_header
from fedworth.ledger.manifest.lines import OPTIONAL as OPTIONAL
from fedworth.ledger.manifest.lines import ClosedLine as ClosedLine
from fedworth.ledger.manifest.lines import Line as Line
from fedworth.ledger.manifest.lines import MissingRound as MissingRound
from fedworth.ledger.manifest.lines import RoundEntry as RoundEntry
from fedworth.ledger.manifest.manifest import FINAL as FINAL
from fedworth.ledger.manifest.manifest import MANIFEST as MANIFEST
from fedworth.ledger.manifest.manifest import line_bytes as line_bytes
from fedworth.ledger.manifest.manifest import read_lines as read_lines
from fedworth.ledger.manifest.manifest import read_manifest as read_manifest
