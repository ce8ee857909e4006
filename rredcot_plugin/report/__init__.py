"""Pictures of credit: traces, plots and learning curves, as self-contained HTML pages and in the terminal.

| module            | what                                                                              |
| ----------------- | --------------------------------------------------------------------------------- |
| `traces`          | read the JSON lines that `algorithm.rredcot.dump_dir` leaves                      |
| `rollouts`        | rollouts without credit as traces                                                 |
| `select`          | which traces are worth showing, worst segments first                              |
| `corpus`          | what a report shows: numbers over all traces, and a bounded choice of them        |
| `read_corpus`     | files of any size as a corpus: one pass for the numbers, then the chosen lines    |
| `choice`          | which traces of files that do not fit into memory                                 |
| `statistics`, `histogram`, `reliability` | means of steps, histograms, calibration, each in one pass  |
| `report_page`     | the page of `rredcot report`: lead, overview, filters and traces                  |
| `plots`, `svg`    | its pictures as inline SVG, without matplotlib                                    |
| `controls`, `report.js`, `report.css` | its filters, the one script, its style                        |
| `compare`, `compare_page` | runs side by side: numbers, options, traces of the prompts they share     |
| `findings`        | what is wrong with the numbers, each with what to do                              |
| `options`         | the options that files were made with, where they say so                          |
| `watch`           | a page that is written again while a run goes on                                  |
| `html`            | traces coloured by segment credit, with a value curve under each                  |
| `colour`          | how strongly, by credit or by advantage, and the control between them             |
| `why`             | the answers that were probed at the boundaries; why siblings differ in V̂          |
| `turns`           | turns of agents, what tools answered, and the calls in the model's text           |
| `fold`, `value_curve` | long texts folded; the expected reward along a trace                          |
| `page`, `page.html`, `page.css` | the page around them: light and dark colours, what it may load      |
| `terminal`, `terminal_report` | one trace, or a whole report, with rich                               |
| `curves`          | learning curves from tensorboard event files; as PNG and SVG with matplotlib      |
| `text`            | text that a model wrote made fit to look at, and numbers in one form              |

Left out on purpose: anything from a network, editing, any model. A page has at most one script, ours, which its
Content-Security-Policy names by hash; without it the page shows everything.
"""
