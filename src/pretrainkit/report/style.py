"""How the page looks: light and dark, wide and narrow, on screen and on paper."""

from pretrainkit.report.chart import CHART_STYLE, COLORS

PAGE_STYLE = (
    COLORS
    + CHART_STYLE
    + """
:root { color-scheme: light dark; --page: #f4f6f9; }
@media (prefers-color-scheme: dark) { :root { --page: #0e1219; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 2px; letter-spacing: -.01em; }
h2 { font-size: 18px; margin: 36px 0 12px; } h3 { font-size: 14px; margin: 2px 0 6px; }
p { margin: 0 0 10px; } .quiet { color: var(--quiet); } .small { font-size: 13px; }
code, .code { font: 12.5px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.panel { background: var(--surface); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.panel + .panel { margin-top: 14px; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(230px, 1fr)); gap: 12px; margin: 20px 0; }
.card { background: var(--surface); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.card .value { font-size: 23px; font-weight: 650; line-height: 1.25; font-variant-numeric: tabular-nums; }
.card .name { color: var(--quiet); font-size: 13px; } .card .aside { font-size: 12.5px; color: var(--quiet); }
.good { color: var(--good); } .bad { color: var(--bad); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(400px, 100%), 1fr)); gap: 14px;
  margin-top: 14px; }
.charts .panel { margin: 0; padding: 10px 12px; } .narrow { display: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; overflow-wrap: break-word; }
th { text-align: left; white-space: nowrap; font-weight: 600; color: var(--quiet); }
th, td { padding: 5px 14px 5px 0; vertical-align: top; border-bottom: 1px solid var(--line); }
tr:last-child > td { border-bottom: 0; }
td code { overflow-wrap: anywhere; } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.path { white-space: nowrap; width: 1%; } .samples td { min-width: 13em; padding-bottom: 9px; padding-top: 9px; }
mark { background: var(--accent); color: inherit; border-radius: 3px; padding: 0 3px; }
mark.hit { background: none; border-radius: 0; box-shadow: inset 0 -2px var(--good); }
mark.miss { background: none; border-radius: 0; box-shadow: inset 0 -2px var(--bad); }
.shown { display: flex; flex-wrap: wrap; gap: 8px; } figure { margin: 0; width: 100%; }
figure.picture { width: auto; max-width: 140px; } figcaption { font-size: 12.5px; }
figure img { display: block; height: 88px; border: 2px solid var(--line); border-radius: 5px; }
figure.alone { max-width: 100%; } figure.alone img { height: auto; max-width: 100%; }
figure.hit img { border-color: var(--good); } figure.miss img { border-color: var(--bad); }
tr.changed td { background: var(--accent); } tr.changed td:first-child { box-shadow: -6px 0 var(--accent); }
.tagged { border: 1px solid var(--line); border-radius: 9px; padding: 0 8px; font-size: 12px; color:
  var(--quiet); white-space: nowrap; }
summary { cursor: pointer; font-weight: 600; } details > :not(summary) { margin-top: 10px; }
ul { margin: 0; padding-left: 20px; }
@media (max-width: 640px) {
  main { padding: 18px 12px 40px; } h1 { font-size: 22px; } .wide { display: none; } .narrow { display: block; }
  .cards { grid-template-columns: repeat(2, 1fr); gap: 8px; } .card .value { font-size: 20px; }
  td.path { white-space: normal; width: auto; }
  .samples thead { display: none; } .samples tr, .samples td { display: block; border: 0; padding: 2px 0; }
  .samples tr { padding: 10px 0; border-bottom: 1px solid var(--line); }
  .samples td::before { content: attr(data-name) " "; color: var(--quiet); font-size: 12px; }
}
@media print {
  :root { --page: #fff; --surface: #fff; --ink: #000; --quiet: #444; --line: #ccc; --axis: #888;
    --c0: #2563c9; --c1: #d9560b; --c2: #0d8a6f; --c3: #7a4fd0; --bad: #c62f3b; --good: #16794c;
    --accent: #fff3c9; color-scheme: light; }
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; } .panel, .card, tr { break-inside: avoid; }
  h2 { break-after: avoid; } .charts { grid-template-columns: 1fr 1fr; }
  .panel.long { break-inside: auto; } details::details-content { content-visibility: visible; block-size: auto; }
  * { print-color-adjust: exact; }
}
"""
)
