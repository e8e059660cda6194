"""Asks vLLM's own selectors which backend they take, without a GPU.

The functions by which vLLM chooses and checks a backend are Python, and read nothing but the properties of the GPU. Here
they run, from the Python files of a wheel, on a machine that is made up: a CUDA platform of any architecture
(`machine.py`), with PyTorch as it is. Packages that the selectors only look for are known by their text
(`text_packages.py`): their modules and names are there, and nothing of them runs. What lives in C++ is answered from
vLLM's sources, with the place (`machine.py`).

For each version and architecture a process of its own asks all questions of a component (`attention.py`, `prefill.py`,
`gemm.py`), because vLLM keeps what it found out about the GPU. The answers become a table of the catalog (`tables.py`).
"""
