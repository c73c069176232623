"""The paper's statements in numbers, corrected where the print is wrong."""
