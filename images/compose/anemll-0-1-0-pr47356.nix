# vLLM PR 47356 on anemll 0.1.0: the KV pin stays out of the compile cache's key, so that another pin needs no new compilation.
# The file's hash is written here once `sparklane image pin … --scan --keep PATH` has read the base; until then the build refuses.
{
  name = "anemll-0-1-0-pr47356";
  base = {
    reference = "ghcr.io/anemll/dspark-vllm-gx10:0.1.0";
    manifest = "sha256:d0a0c050252dd0b64a3213c728d1c15db9eb37602593ba37534bc708dd223ae7";
  };
  layers = [
    {
      kind = "edits";
      edits = [
        {
          path = "/usr/local/lib/python3.12/dist-packages/vllm/config/cache.py";
          preimage = null;
          change.insertAfter = {
            anchor = "        ignored_factors = {\n";
            text = "            \"kv_cache_memory_bytes\",\n";
          };
        }
      ];
    }
  ];
}
