"""The page of a report, a statement for one client, and a page that compares reports: HTML files that stand alone."""
