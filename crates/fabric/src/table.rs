//! Rows as people read them.

use std::fmt::Write as _;

use crate::checks::{Outcome, Row};

/// The table: findings with cause and remedy first, then what is well, a line each.
#[must_use]
pub fn text(rows: &[Row]) -> String {
    let mut out = String::new();
    for row in rows {
        let _fits = writeln!(out, "{:<13} {:<17} {:<24} {}", row.outcome.word(), row.check, place(row), row.seen);
    }
    let found = findings(rows);
    if !found.is_empty() {
        out.push('\n');
        out.push_str(&found);
    }
    let count = |outcome: Outcome| rows.iter().filter(|r| r.outcome == outcome).count();
    let _fits = write!(
        out,
        "\n{} ok, {} failed, {} warnings, {} n/a (declared), {} not checked, {} ignored",
        count(Outcome::Ok),
        count(Outcome::Failed),
        count(Outcome::Warn),
        count(Outcome::Declared),
        count(Outcome::Skipped),
        count(Outcome::Ignored),
    );
    out
}

/// Failures and warnings, each with what was wanted, its cause and what to do.
#[must_use]
pub fn findings(rows: &[Row]) -> String {
    let mut out = String::new();
    for row in rows.iter().filter(|row| matches!(row.outcome, Outcome::Failed | Outcome::Warn)) {
        let _fits = writeln!(out, "{} {} {}: {}", row.outcome.word(), row.check, place(row), row.seen);
        for (name, text) in [("wanted", &row.wanted), ("cause", &row.cause), ("do", &row.remedy)] {
            if let Some(text) = text {
                let _fits = writeln!(out, "  {name}: {text}");
            }
        }
    }
    out
}

fn place(row: &Row) -> String {
    let node = row.node.as_ref().map_or("all", |n| n.as_str());
    let rail = row.rail.as_ref().map_or_else(String::new, |r| format!(" {r}"));
    let peer = row.peer.as_ref().map_or_else(String::new, |p| format!(" -> {p}"));
    format!("{node}{rail}{peer}")
}
