# The engine simulator of the rehearsal lab. Its digests come from the prebuilt input (nix/catalog.nix).
{
  name = "lab-sim";
  description = "engine simulator of the rehearsal lab";
  reference = "sparklane-sim:lab";
  systems = [ "x86_64-linux" ];
  vllm = "0.25.2";
  serve = [ "/sparklane-sim" "serve" ];
  pinWith = "cargo xtask prebuilt";
}
