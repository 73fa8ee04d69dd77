"""The report: what the jobs have found, as one page to look at."""
