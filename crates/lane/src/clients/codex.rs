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

/// Keys of a model without which Codex refuses the whole catalogue, or did in a version that is in use.
const REQUIRED: [&str; 13] = [
    "slug",
    "display_name",
    "supported_reasoning_levels",
    "shell_type",
    "visibility",
    "supported_in_api",
    "priority",
    "base_instructions",
    "supports_reasoning_summaries",
    "support_verbosity",
    "truncation_policy",
    "supports_parallel_tool_calls",
    "experimental_supported_tools",
];

/// As much of somebody's config.toml as a lane has to do with.
#[derive(Debug, Default, Deserialize)]
struct Theirs {
    model: Option<String>,
    model_provider: Option<String>,
    model_catalog_json: Option<String>,
    model_auto_compact_token_limit: Option<u64>,
    #[serde(default)]
    model_providers: std::collections::BTreeMap<String, Provider>,
}

#[derive(Debug, Default, Deserialize)]
struct Provider {
    base_url: Option<String>,
    wire_api: Option<String>,
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
    if limit.is_none_or(|limit| limit > served.fence) {
        let seen = limit.map_or("not set".to_owned(), |limit| limit.to_string());
        let remedy = format!("model_auto_compact_token_limit = {}: beyond it this model loops", served.fence);
        find(Some("G12"), format!("model_auto_compact_token_limit is {seen}"), remedy);
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
    let same =
        provider.base_url.as_deref().map(|theirs| theirs.trim_end_matches('/').replace("//localhost:", "//127.0.0.1:"));
    if same.as_deref() != Some(url.as_str()) {
        let seen = provider.base_url.as_ref().map_or("is not set".to_owned(), |theirs| format!("= {theirs:?}"));
        find(
            None,
            format!("model_providers.{name}.base_url {seen}"),
            format!("base_url = {url:?}, where the lane listens"),
        );
    }
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
    let missing: Vec<&str> = REQUIRED.into_iter().filter(|key| model.get(key).is_none()).collect();
    let mut findings = Vec::new();
    if !missing.is_empty() {
        findings.push(finding(format!("the catalogue's model lacks {}", missing.join(", "))));
    }
    if model["context_window"].as_u64().is_some_and(|window| window > served.window) {
        findings.push(finding(format!("the catalogue's context_window is longer than the lane's {}", served.window)));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served() -> Served {
        Served {
            address: "http://127.0.0.1:8000".into(),
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
    fn a_catalogue_of_an_older_hand_is_named_with_what_it_lacks() {
        let mut old = catalog(&served());
        old["models"][0].as_object_mut().unwrap().remove("supports_reasoning_summaries");
        old["models"][0]["context_window"] = 2_000_000.into();
        let found = check_catalog(old.to_string().as_bytes(), &served());
        assert!(found[0].seen.contains("supports_reasoning_summaries") && found[1].seen.contains("context_window"));
        for bytes in [&b"{"[..], b"{}", b"[]", b"{\"models\": [3]}", b"{\"models\": [{\"slug\": \"gpt\"}]}"] {
            assert_eq!(check_catalog(bytes, &served()).len(), 1);
        }
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
