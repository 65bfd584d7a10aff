//! Services that come with NVIDIA's driver: the fabric manager, IMEX and DCGM.

mod dcgm;
mod fabric_manager;
mod imex;
mod provided;
mod versions;

#[cfg(test)]
mod tests;
