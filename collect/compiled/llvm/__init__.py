"""CPU code in LLVM's intermediate representation: read, followed and counted, never run."""
