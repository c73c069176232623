"""The documentation site, in two steps around Zensical; `make docs` does all three.

python -m tools.site stage build/docs     the pages, and what is made for them: references, notebooks, gallery, KaTeX
zensical build --strict                   build/docs → build/site
python -m tools.site check build/site     the site asks nobody else for anything, and its formulae are set

python -m tools.site pictures docs/figures     the pictures of the page and of a statement, anew
"""

import argparse
from pathlib import Path

from tools.site.check import check
from tools.site.pictures import put_pictures
from tools.site.stage import stage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("stage", "check", "pictures"))
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    {"stage": stage, "check": check, "pictures": put_pictures}[args.what](args.folder)


if __name__ == "__main__":
    main()
