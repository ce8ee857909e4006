"""Pictures of credit: traces and learning curves, as one self-contained HTML page and in the terminal.

| module     | what                                                                    |
| ---------- | ----------------------------------------------------------------------- |
| `traces`   | read the JSON lines that `algorithm.rredcot.dump_dir` leaves            |
| `select`   | which traces are worth showing, worst steps first                       |
| `html`     | traces coloured by segment credit, with a value curve under each        |
| `page`     | the page around them: title, curves, tables, light and dark colours     |
| `terminal` | one trace with rich                                                     |
| `curves`   | learning curves from tensorboard event files, as PNG and as inline SVG  |

Left out on purpose: scripts in the page, fonts or styles from a network, editing, any model.
"""
