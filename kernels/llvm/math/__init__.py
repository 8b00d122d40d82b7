"""Mathematical functions of vectors as LLVM text."""
