"""The report: what the jobs have found, as one page to look at.

`report/making.py` runs the jobs or takes their tables, `report/figures.py`
makes a few rows of each, `report/charts.py` draws them with matplotlib, `report/page.py` puts the page together
(`report/news.py`: its first parts, who is behind now, what was skipped, events, who is not well; `report/pieces.py`:
tables, pictures and next commands; `report/style.py`: the style sheet), and `report/markup.py` keeps names of clients
from being more than text. `table_folder.py` writes and reads tables that are whole or not there, `local_files.py`
does the same for files of this machine.
"""
