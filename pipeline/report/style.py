"""How the page looks: light and dark, wide, on a phone and on paper."""

from barnabas.pipeline.report.colours import colour_variables
from barnabas.pipeline.report.statuses import STATUSES


def css() -> str:
    statuses = (f".{name.lower()}{{--own:var(--{status.colour})}}" for name, status in STATUSES.items())
    return f"{colour_variables()}{''.join(statuses)}{CSS}"


CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,sans-serif;overflow-wrap:break-word}
main{max-width:60rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0 1rem}
h2{font-size:1.2rem;margin:0 0 .5rem}
h3{font-size:1rem;margin:1rem 0 .5rem}
section{border-top:1px solid var(--line);padding:1.25rem 0;margin-top:1rem}
p{margin:.4rem 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:1.25rem 0 0}
dt,.soft,.note,footer{color:var(--soft)}
dd{margin:0}
.missing{border:1px solid var(--warn);border-left-width:.4rem;border-radius:.4rem;padding:.6rem 1rem;margin-top:1rem}
.missing h2{font-size:1rem}
.missing ul{margin:0;padding-left:1.2rem}
.first{font-size:1.15rem;margin-bottom:.6rem}
header section{border-top:0;padding:0;margin-top:0}
.alarm{border:2px solid var(--stop);border-left-width:.5rem;border-radius:.4rem;padding:.8rem 1rem;margin-top:1.25rem}
.alarm h2{color:var(--stop)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin-top:1.25rem}
.tiles p{border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem;margin:0}
.tiles b{display:block;font-size:1.35rem;line-height:1.3}
.tiles span{color:var(--soft);font-size:.9rem}
.keys{list-style:none;padding:0;margin:.5rem 0;display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;font-size:.9rem}
.status{font-weight:600;font-size:.85em;white-space:nowrap;color:var(--own,var(--text))}
.status::before{content:"";display:inline-block;width:.7em;height:.7em;margin-right:.35em;background:currentColor}
.number{text-align:right;font-variant-numeric:tabular-nums}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th{text-align:left;color:var(--soft);font-weight:600;vertical-align:bottom}
th.number{text-align:right}
th,td{padding:.35rem 1rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td:last-child,th:last-child{padding-right:0}
bdi.long{overflow-wrap:anywhere}
picture,img{display:block;width:100%;height:auto}
picture{margin:.75rem 0}
details{margin-top:.75rem}
summary{cursor:pointer;color:var(--blue)}
summary:focus-visible{outline:2px solid var(--blue);outline-offset:2px}
code{font-size:.9em;overflow-wrap:anywhere}
time span{white-space:nowrap}
code span{display:inline-block;max-width:100%}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
@media(max-width:700px){
main{padding:.75rem 10px}
dl{grid-template-columns:1fr}
dd{margin-bottom:.4rem}
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
table,tbody{display:block}
tr{display:block;border-bottom:1px solid var(--line);padding:.5rem 0}
td,td.number{display:flex;justify-content:space-between;gap:1rem;text-align:right;border:0;padding:.1rem 0}
td::before{content:attr(data-label);color:var(--soft);text-align:left;flex:none;max-width:45%}
td:first-child{font-weight:600}
td>div{min-width:0}
}
@media print{details>*{display:block}}
"""
