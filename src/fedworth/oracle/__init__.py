"""What measures utilities of coalitions."""
