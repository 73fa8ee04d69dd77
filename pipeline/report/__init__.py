"""The report: what the jobs have found, as one page to look at.

`making.py` runs the jobs or takes their tables, `figures.py` makes a few rows of each, `charts.py` draws them with
matplotlib, `page.py` puts the page together (`news.py`: its first parts, who is behind now, what was skipped, events,
who is not well; `pieces.py`: tables, pictures and next commands; `style.py`: the style sheet; `colours.py`: its
colours, and those of the charts; `statuses.py`: what each status means), and `markup.py` keeps names of clients from
being more than text.
"""
