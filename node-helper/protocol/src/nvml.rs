//! What the supervisor asks the NVML worker, and what it answers.
