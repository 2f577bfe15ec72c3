# Two DGX Sparks with one QSFP cable. An example: write your own from `nix flake init -t`.
{
  name = "sparks";
  description = "two DGX Sparks with one QSFP cable";
  defaultLane = "ray-0731";
  buildSystem = "x86_64-linux";
  ssh.user = "operator";
  nodes = {
    head = {
      role = "head";
      rank = 0;
      system = "aarch64-linux";
      host = "192.168.1.10";
      rail1 = { netdev = "enp1s0f0np0"; rdma = "rocep1s0f0"; address = "10.0.0.1"; };
      rail2 = { netdev = "enP2p1s0f0np0"; rdma = "roceP2p1s0f0"; address = "10.0.1.1"; };
      memoryBytes = 130620000000;
    };
    worker = {
      role = "worker";
      rank = 1;
      system = "aarch64-linux";
      host = "192.168.1.11";
      rail1 = { netdev = "enp1s0f0np0"; rdma = "rocep1s0f0"; address = "10.0.0.2"; };
      rail2 = { netdev = "enP2p1s0f0np0"; rdma = "roceP2p1s0f0"; address = "10.0.1.2"; };
      memoryBytes = 130620000000;
    };
  };
  # Refuse a deployment over a cable or a driver that is not as it must be (docs/fabric.md).
  fabric.preflight = true;
  host = {
    rails.mtu = 9000;
    memlock = true;
    # The ranks' ports over the rails only (docs/fabric.md).
    firewall = { };
    # Loading weights fills the page cache of a memory that the GPU shares.
    sysctl = {
      "vm.dirty_background_ratio" = "2";
      "vm.dirty_ratio" = "5";
      "vm.min_free_kbytes" = "4194304";
      "vm.vfs_cache_pressure" = "200";
    };
  };
}
