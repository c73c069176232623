"""The fast oracle: the same utilities as the plain loop's, for a small part of its work."""

from fedworth.oracle.fast.oracle import NOTHING_YET as NOTHING_YET
from fedworth.oracle.fast.oracle import FastOracle as FastOracle
from fedworth.oracle.fast.oracle import n_processors as n_processors
