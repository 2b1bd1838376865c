"""CPU code in LLVM's intermediate representation: parsed, followed and counted, never run."""
