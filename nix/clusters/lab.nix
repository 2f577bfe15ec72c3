# The rehearsal lab on one machine (`sparklane lab up`): veth rails, no GPU, no RDMA.
{
  name = "lab";
  description = "rehearsal nodes on this machine";
  defaultLane = "lab-a";
  buildSystem = "x86_64-linux";
  ssh.user = "operator";
  nodes = {
    head = {
      role = "head";
      rank = 0;
      system = "x86_64-linux";
      host = "10.77.0.10";
      rail1 = { netdev = "rail1"; address = "10.77.1.10"; };
      rail2 = { netdev = "rail2"; address = "10.77.2.10"; };
    };
    worker = {
      role = "worker";
      rank = 1;
      system = "x86_64-linux";
      host = "10.77.0.11";
      rail1 = { netdev = "rail1"; address = "10.77.1.11"; };
      rail2 = { netdev = "rail2"; address = "10.77.2.11"; };
    };
  };
  absent = [ "gpu" "rdma" "link-speed" "sys-resource" ];
}
