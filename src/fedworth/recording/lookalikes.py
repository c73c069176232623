"""Names that look alike are one name: 'clinic-a', 'Clinic-A', 'clinic-a ' and 'сlinic-а' in Cyrillic letters.

The skeleton of a name is what is left when everything that the eye overlooks is taken away:

    compatibility forms   NFKC: ﬁ is fi, Ａ is A, ² is 2
    case                  case folding: A is a, ẞ is ss
    spaces                none at the ends, one where there are several, and none that cannot be seen
    accents               none: é is e; a name that differs in an accent alone is too near to be told apart in a table
    dashes, apostrophes   one: ‐ and – and − are -
    letters of another alphabet that look like Latin ones, small capitals, and 0 and 1, which look like o and l

Two names with one skeleton are taken for one. The letters are a subset of Unicode's own list of confusables (UTS #39):
the Cyrillic, Greek and Armenian ones that look like Latin letters in common typefaces; capitals first, since some look
like another letter than their small form does. Skeletons are compared, never shown.
"""

import unicodedata

CAPITALS = str.maketrans("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧАВЕКМНОРСТУХЅІЈԚԜՕՍ", "ABEZHIKMNOPTYXABEKMHOPCTYXSIJQWOU")
LETTERS = str.maketrans(
    "асеһіјӏорԛгѕѵԝхуьԁԍαειικνορτυχγոսցօքհıɑɡ01үѡωʋǀ|℮০๐١",
    "acehijlopqrsvwxybdgaeiikvoptuxynugoqhiagolywwulleool",
)
UNSEEN = "\u115f\u1160\u3164\uffa0\u2800"  # letters or signs by their category, yet blank: fillers, and Braille's
FIRST = str.maketrans("ϲϹᴄᴏᴠᴡᴢꜱ−\u2019\u2018\u02bc", "cCcovwzs-" + 3 * "'")  # NFKC would make another letter of some


def skeleton(name: str) -> str:
    """What is left of a name when everything that the eye overlooks is taken away."""
    dashed = "".join("-" if unicodedata.category(c) == "Pd" else c for c in name).translate(FIRST)
    folded = unicodedata.normalize("NFKC", dashed).translate(CAPITALS).casefold()
    letters = unicodedata.normalize("NFKD", folded)
    visible = "".join(c for c in letters if c not in UNSEEN and unicodedata.category(c) not in ("Mn", "Me", "Cf", "Cc"))
    return " ".join(visible.split()).translate(LETTERS)


def tidy(name: str) -> str:
    """A name as it is kept: in its usual form (NFKC), without invisible characters or needless spaces."""
    usual = unicodedata.normalize("NFKC", name)
    seen = "".join(c for c in usual if c not in UNSEEN and unicodedata.category(c) not in ("Cf", "Cc"))
    return " ".join(seen.split())
