"""Reading how other tools deploy vLLM, and writing it as a VLLMDeployment. Pure: objects in, an object and a report out.

sources (the tools), engine (command line and report), pod (the rest of the Pod), translation (the result);
tables (what becomes of fields)
"""
