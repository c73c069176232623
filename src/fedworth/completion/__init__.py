"""Fill the unseen cells of the utility matrix, with evidence of fit."""
