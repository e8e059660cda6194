"""Reading how other tools deploy vLLM, and writing it as a VLLMDeployment. Pure: objects in, an object and a report out."""
