"""Write all files that are generated from the code and the catalog: `make generate`."""

import generate_backends_doc
import generate_chart
import generate_crds
import generate_dashboards
import generate_docs
import generate_sizing_doc

GENERATORS = (generate_crds, generate_docs, generate_chart, generate_dashboards, generate_backends_doc, generate_sizing_doc)

if __name__ == "__main__":
    for generator in GENERATORS:
        for path, text in generator.files().items():
            path.write_text(text, "utf-8")
