"""One way to look after a machine: ``dllm-relay host`` at the other end of a stream."""
