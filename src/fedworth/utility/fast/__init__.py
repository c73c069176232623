"""The fast oracle: this is its door, and nobody outside imports from deeper in this folder."""

from fedworth.utility.fast.oracle import NOTHING_YET as NOTHING_YET
from fedworth.utility.fast.oracle import FastOracle as FastOracle
from fedworth.utility.fast.oracle import n_processors as n_processors
