"""The fast oracle: this is its door, and nobody outside imports from deeper in this folder."""

from fedworth.oracle.fast.oracle import NOTHING_YET as NOTHING_YET
from fedworth.oracle.fast.oracle import FastOracle as FastOracle
from fedworth.oracle.fast.oracle import n_processors as n_processors
