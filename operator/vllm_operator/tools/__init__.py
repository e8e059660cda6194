"""Programs that run in Pods of engines and in Jobs, delivered as one file (`hack/build_tools.py`).

They use only the standard library; `hub` also uses huggingface_hub of the engine's image.

programs  fetch, pack and publish (caches in a registry), clean_caches, hub (weights and adapters); `__main__` runs one of them
catalog   vllm_build (reads the table of a build of vLLM from its sources)
gate      measure (figures of an engine under a fixed load)
probe     check_engine and connections (sample an engine), progress (decides whether it hangs), hang (keeps evidence and ends it)
common    artifact, build (fingerprint of the engine's software), registry (client)
"""
