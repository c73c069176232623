"""The documentation site, in two steps around Zensical; `make docs` does all three.

python -m tools.site stage build/docs     the pages, and what is made for them: references, notebooks, gallery, KaTeX
zensical build --strict                   build/docs → build/site
python -m tools.site check build/site     the site asks nobody else for anything, and its formulae are set
"""

import argparse
from pathlib import Path

from tools.site.check import check
from tools.site.stage import stage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("stage", "check"))
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    (stage if args.what == "stage" else check)(args.folder)


if __name__ == "__main__":
    main()
