# The pinned Ray wheels on anemll 0.1.1; resolved by `sparklane image lock-wheels`.
{
  name = "anemll-0-1-1-ray";
  base = {
    reference = "ghcr.io/anemll/dspark-vllm-gx10:0.1.1";
    manifest = "sha256:a83948492cf13df455170fb42885f5ef4db54fefe0feff0f841ecbff464ac9d8";
    config = "sha256:3430d6614a8e2925f34d059af6caf05aff42387326db4d05639a60f10f2654d8";
  };
  layers = [
    {
      kind = "wheels";
      lock = builtins.fromJSON (builtins.readFile ../ray-2.57.0-cp312-aarch64.lock.json);
      interpreter = "/usr/bin/python3";
      site = "/usr/local/lib/python3.12/dist-packages";
      scripts = "/usr/local/bin";
    }
  ];
}
