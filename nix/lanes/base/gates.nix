# The three checks every lane ends with: the unit runs, the API answers, tokens come out.
{ nodeSecs, apiSecs, tokenSecs }:
[
  {
    name = "engine-unit";
    scope = "node";
    budgetSecs = nodeSecs;
    check = { kind = "unit"; unit = "sparklane-engine.service"; };
  }
  {
    name = "api-health";
    scope = "cluster";
    budgetSecs = apiSecs;
    check = { kind = "http"; path = "/health"; status = 200; };
  }
  {
    name = "tokens";
    scope = "cluster";
    budgetSecs = tokenSecs;
    check = { kind = "tokens"; prompt = "Reply with exactly: OK"; maxTokens = 32; minTokens = 1; };
  }
]
