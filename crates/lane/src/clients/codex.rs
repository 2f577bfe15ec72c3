//! Codex: its config.toml and the catalogue that tells it what the model can do.
//!
//! Since 0.147 it speaks `responses` only, and warns of every model that no catalogue describes (facts: ray-kit.md 2.7,
//! G9, G10). Tried with the real 0.147.0, see docs/operations.md.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Finding, Served};

/// Name of the provider in config.toml.
const PROVIDER: &str = "sparklane";
/// Variable that Codex reads the key from.
const KEY: &str = "VLLM_API_KEY";
/// How the agent is told to work.
const INSTRUCTIONS: &str = include_str!("instructions.txt");

/// config.toml beside a catalogue at an absolute path.
///
/// Strings are written as JSON writes them, which TOML reads alike.
#[must_use]
pub fn config(served: &Served, catalog: &str) -> String {
    let string = |text: &str| Value::from(text).to_string();
    let key = match &served.key_file {
        Some(file) => format!("# {KEY}: what {file} on the head holds."),
        None => format!("# {KEY} must be set; any word does, the lane asks for none."),
    };
    format!(
        "model = {}\nmodel_provider = \"{PROVIDER}\"\nmodel_catalog_json = {}\nmodel_auto_compact_token_limit = {}\n\n\
         [model_providers.{PROVIDER}]\nname = \"{PROVIDER}\"\nbase_url = {}\nwire_api = \"responses\"\n{key}\n\
         env_key = \"{KEY}\"\n",
        string(&served.model),
        string(catalog),
        served.fence,
        string(&base_url(served)),
    )
}

fn base_url(served: &Served) -> String {
    format!("{}/v1", served.address)
}

/// The catalogue: one model, with every key that some version of Codex requires.
#[must_use]
pub fn catalog(served: &Served) -> Value {
    let level = |(effort, description): (&str, &str)| json!({"effort": effort, "description": description});
    let levels = [
        ("none", "answers at once"),
        ("low", "thinks briefly"),
        ("medium", "thinks"),
        ("high", "thinks for long; best for hard changes"),
    ];
    json!({"models": [{
        "slug": served.model,
        "display_name": served.model,
        "description": served.description,
        "default_reasoning_level": "none",
        "supported_reasoning_levels": levels.map(level),
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": true,
        "priority": 0,
        "availability_nux": null,
        "upgrade": null,
        "base_instructions": INSTRUCTIONS,
        "supports_reasoning_summaries": false,
        "support_verbosity": false,
        "default_verbosity": null,
        "apply_patch_tool_type": null,
        "truncation_policy": {"mode": "tokens", "limit": 10_000},
        "supports_parallel_tool_calls": true,
        "context_window": served.window,
        "max_context_window": served.window,
        "auto_compact_token_limit": served.fence,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
        "tool_mode": "direct",
    }]})
}

/// A model of a catalogue as Codex reads it: a key that is missing or of another kind makes it refuse the whole file, or
/// did in a version that is in use.
#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "read for their kinds")]
struct Entry {
    display_name: String,
    supported_reasoning_levels: Vec<Level>,
    shell_type: String,
    visibility: String,
    supported_in_api: bool,
    priority: i64,
    base_instructions: String,
    supports_reasoning_summaries: bool,
    support_verbosity: bool,
    truncation_policy: Truncation,
    supports_parallel_tool_calls: bool,
    experimental_supported_tools: Vec<String>,
    context_window: Option<u64>,
    max_context_window: Option<u64>,
    auto_compact_token_limit: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "read for their kinds")]
struct Level {
    effort: String,
    description: String,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "read for their kinds")]
struct Truncation {
    mode: String,
    limit: u64,
}

/// As much of somebody's config.toml as a lane has to do with.
#[derive(Debug, Default, Deserialize)]
struct Theirs {
    model: Option<String>,
    model_provider: Option<String>,
    model_catalog_json: Option<String>,
    model_auto_compact_token_limit: Option<u64>,
    profile: Option<String>,
    #[serde(default)]
    model_providers: std::collections::BTreeMap<String, Provider>,
}

#[derive(Debug, Default, Deserialize)]
struct Provider {
    base_url: Option<String>,
    wire_api: Option<String>,
    env_key: Option<String>,
}

/// What a config.toml says, judged against a lane.
#[derive(Debug)]
pub struct Checked {
    /// What will not work.
    pub findings: Vec<Finding>,
    /// The catalogue it names, by an absolute path: to be read and given to [`check_catalog`].
    pub catalog: Option<String>,
}

/// Judges somebody's config.toml.
///
/// # Errors
/// When it is no TOML or its keys are of another kind; words for a person, with the line.
pub fn check(text: &str, served: &Served) -> Result<Checked, String> {
    let theirs: Theirs = toml::from_str(text).map_err(|e| e.to_string().trim().to_owned())?;
    let mut findings = Vec::new();
    let mut find = |gotcha, seen: String, remedy: String| findings.push(Finding { gotcha, seen, remedy });
    if theirs.model.as_deref() != Some(&served.model) {
        let seen = theirs.model.as_ref().map_or("no model is set".to_owned(), |m| format!("model = {m:?}"));
        find(None, seen, format!("model = {:?}, the name that the lane serves", served.model));
    }
    check_provider(&theirs, served, &mut find);
    let catalog = theirs.model_catalog_json.filter(|path| Path::new(path).is_absolute());
    if catalog.is_none() {
        let remedy = "model_catalog_json = the absolute path of the catalogue that `sparklane lane clients` writes";
        find(Some("G10"), "model_catalog_json is not set, or is no absolute path".to_owned(), remedy.to_owned());
    }
    let limit = theirs.model_auto_compact_token_limit;
    if limit.is_none_or(|limit| limit == 0 || limit > served.fence) {
        let seen = limit.map_or("not set".to_owned(), |limit| limit.to_string());
        let remedy = format!("model_auto_compact_token_limit = {}: beyond it this model loops", served.fence);
        find(Some("G12"), format!("model_auto_compact_token_limit is {seen}"), remedy);
    }
    if let Some(profile) = theirs.profile {
        let remedy =
            "keep other models in profiles and name one with codex --profile; here the keys above have to count";
        find(None, format!("profile = {profile:?} sets keys over these"), remedy.to_owned());
    }
    Ok(Checked { findings, catalog })
}

fn check_provider(theirs: &Theirs, served: &Served, find: &mut impl FnMut(Option<&'static str>, String, String)) {
    let url = base_url(served);
    let provider = theirs.model_provider.as_ref().and_then(|name| Some((name, theirs.model_providers.get(name)?)));
    let Some((name, provider)) = provider else {
        let remedy =
            format!("model_provider = {PROVIDER:?} and a table [model_providers.{PROVIDER}] with base_url = {url:?}");
        return find(None, "model_provider names no table of model_providers".to_owned(), remedy);
    };
    if let Some(api) = provider.wire_api.as_deref().filter(|api| *api != "responses") {
        let seen = format!("model_providers.{name}.wire_api = {api:?}, which Codex refuses since 0.147");
        find(Some("G9"), seen, "wire_api = \"responses\"".to_owned());
    }
    if !provider.base_url.as_deref().is_some_and(|theirs| leads_to(theirs, served)) {
        let seen = provider.base_url.as_ref().map_or("is not set".to_owned(), |theirs| format!("= {theirs:?}"));
        let remedy = format!("base_url = {url:?}, where the lane listens");
        find(None, format!("model_providers.{name}.base_url {seen}"), remedy);
    }
    if let (Some(file), None) = (&served.key_file, &provider.env_key) {
        let seen = format!("model_providers.{name}.env_key is not set, and the lane asks for a key");
        find(None, seen, format!("env_key = {KEY:?}, and in it what {file} on the head holds"));
    }
}

/// True for an address of the lane's API: its own, loopback by name, or any host where it listens on all.
fn leads_to(theirs: &str, served: &Served) -> bool {
    let plain = |url: &str| url.trim_end_matches('/').replace("//localhost:", "//127.0.0.1:");
    let (theirs, ours) = (plain(theirs), base_url(served));
    let port = |url: &str| url.rsplit_once(':').map(|(_, port)| port.to_owned());
    theirs == ours || served.everywhere && theirs.starts_with("http://") && port(&theirs) == port(&ours)
}

/// Judges a catalogue's bytes.
#[must_use]
pub fn check_catalog(bytes: &[u8], served: &Served) -> Vec<Finding> {
    let remedy = || "write it anew: sparklane lane clients LANE --out DIR".to_owned();
    let finding = |seen: String| Finding { gotcha: Some("G10"), seen, remedy: remedy() };
    let read: Value = match serde_json::from_slice(bytes) {
        Ok(value) => value,
        Err(error) => return vec![finding(format!("the catalogue is no JSON: {error}"))],
    };
    let models = read["models"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(model) = models.iter().find(|m| m["slug"].as_str() == Some(&served.model)) else {
        return vec![finding(format!("the catalogue describes no model {:?}", served.model))];
    };
    let entry: Entry = match serde_json::from_value(model.clone()) {
        Ok(entry) => entry,
        Err(error) => return vec![finding(format!("Codex refuses the catalogue's model: {error}"))],
    };
    let mut findings = Vec::new();
    for (key, window) in [("context_window", entry.context_window), ("max_context_window", entry.max_context_window)] {
        if window.is_some_and(|window| window > served.window) {
            findings.push(finding(format!("the catalogue's {key} is longer than the lane's {}", served.window)));
        }
    }
    if entry.auto_compact_token_limit.is_some_and(|limit| limit > served.fence) {
        let seen = format!("the catalogue's auto_compact_token_limit is above the lane's {}", served.fence);
        findings.push(Finding { gotcha: Some("G12"), ..finding(seen) });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served() -> Served {
        Served {
            address: "http://127.0.0.1:8000".into(),
            everywhere: false,
            model: "ds-0731".into(),
            description: "a \"lane\"".into(),
            window: 1_048_576,
            fence: 150_000,
            key_file: None,
            tunnel: None,
        }
    }

    #[test]
    fn what_is_written_passes_its_own_check() {
        let text = config(&served(), "/home/\"me\"/catalog.json");
        let checked = check(&text, &served()).unwrap();
        assert_eq!(checked.findings, []);
        assert_eq!(checked.catalog.as_deref(), Some("/home/\"me\"/catalog.json"));
        let bytes = serde_json::to_vec(&catalog(&served())).unwrap();
        assert_eq!(check_catalog(&bytes, &served()), []);
    }

    /// The file of the kit before it was mended, and every other way not to get through.
    #[test]
    fn each_fault_is_found_by_its_number() {
        let good = config(&served(), "/c.json");
        let found = |text: &str| -> Vec<Option<&str>> {
            check(text, &served()).unwrap().findings.iter().map(|f| f.gotcha).collect()
        };
        assert_eq!(found(&good.replace("\"responses\"", "\"chat\"")), [Some("G9")]);
        assert_eq!(found(&good.replace("\"/c.json\"", "\"c.json\"")), [Some("G10")]);
        assert_eq!(found(&good.replace("limit = 150000", "limit = 900000")), [Some("G12")]);
        assert_eq!(found(&good.replace("ds-0731", "gpt")), [None]);
        assert_eq!(found(&good.replace(":8000", ":9000")), [None]);
        assert_eq!(found(&good.replace("127.0.0.1", "localhost").replace("/v1\"", "/v1/\"")), []);
        assert_eq!(found(""), [None, None, Some("G10"), Some("G12")]);
        assert!(check("model = 3", &served()).unwrap_err().contains("line 1"));
    }

    #[test]
    fn a_profile_no_limit_and_no_key_are_named() {
        let good = config(&served(), "/c.json");
        let count = |text: &str, served: &Served| check(text, served).unwrap().findings.len();
        assert_eq!(count(&format!("profile = \"x\"\n{good}"), &served()), 1);
        assert_eq!(count(&good.replace("limit = 150000", "limit = 0"), &served()), 1);
        let keyed = Served { key_file: Some("/k".into()), ..served() };
        assert_eq!((count(&good, &keyed), count(&good.replace("env_key", "other_key"), &keyed)), (0, 1));
    }

    #[test]
    fn an_api_on_every_address_is_reached_by_any() {
        let everywhere = Served { address: "http://10.9.0.1:8000".into(), everywhere: true, ..served() };
        for (url, leads) in [
            ("http://spark-head:8000/v1", true),
            ("http://10.9.0.1:8000/v1/", true),
            ("http://spark-head:9000/v1", false),
            ("https://spark-head:8000/v1", false),
            ("nonsense", false),
        ] {
            assert_eq!(leads_to(url, &everywhere), leads, "{url}");
        }
        assert!(!leads_to("http://spark-head:8000/v1", &served()));
    }

    /// Codex 0.147.0 refuses a catalogue without `support_verbosity` or `shell_type` in these words; older ones wanted
    /// the last key too.
    #[test]
    fn a_catalogue_that_codex_refuses_is_named_with_the_key() {
        for key in ["support_verbosity", "shell_type", "supports_reasoning_summaries"] {
            let mut old = catalog(&served());
            old["models"][0].as_object_mut().unwrap().remove(key);
            let found = check_catalog(old.to_string().as_bytes(), &served());
            assert!(found[0].seen.contains(&format!("missing field `{key}`")), "{found:?}");
        }
        let mut odd = catalog(&served());
        odd["models"][0]["supported_reasoning_levels"] = 3.into();
        assert_eq!(check_catalog(odd.to_string().as_bytes(), &served()).len(), 1);
        for bytes in [&b"{"[..], b"{}", b"[]", b"{\"models\": [3]}", b"{\"models\": [{\"slug\": \"gpt\"}]}"] {
            assert_eq!(check_catalog(bytes, &served()).len(), 1);
        }
    }

    #[test]
    fn a_catalogue_that_promises_too_much_is_named() {
        let mut wide = catalog(&served());
        for (key, value) in
            [("context_window", 2_000_000), ("max_context_window", 9_000_000), ("auto_compact_token_limit", 900_000)]
        {
            wide["models"][0][key] = value.into();
        }
        let found: Vec<_> = check_catalog(wide.to_string().as_bytes(), &served()).iter().map(|f| f.gotcha).collect();
        assert_eq!(found, [Some("G10"), Some("G10"), Some("G12")]);
    }

    proptest::proptest! {
        #[test]
        fn nothing_in_a_file_panics(text in ".*", bytes: Vec<u8>) {
            let _ = check(&text, &served());
            let _ = check_catalog(&bytes, &served());
        }

        #[test]
        fn any_path_is_read_back(path in "/[^\u{0}-\u{1f}\u{7f}]*") {
            let checked = check(&config(&served(), &path), &served()).unwrap();
            proptest::prop_assert_eq!(checked.catalog, Some(path));
        }
    }
}
