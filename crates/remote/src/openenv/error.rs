//! What an OpenEnv server can do wrong.

use std::fmt;

use crate::wire::WireError;

/// What kind of trouble a server says it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Code {
    /// It could not read the message.
    InvalidJson,
    /// It does not know the message.
    UnknownType,
    /// The action or the message is not of its form.
    Validation,
    /// The environment failed.
    Execution,
    /// It has no room for another session.
    Capacity,
    /// It could not make an environment.
    Factory,
    /// The session failed.
    Session,
    /// Something else.
    Other(String),
}

impl Code {
    pub(super) fn parse(text: &str) -> Code {
        match text {
            "INVALID_JSON" => Code::InvalidJson,
            "UNKNOWN_TYPE" => Code::UnknownType,
            "VALIDATION_ERROR" => Code::Validation,
            "EXECUTION_ERROR" => Code::Execution,
            "CAPACITY_REACHED" => Code::Capacity,
            "FACTORY_ERROR" => Code::Factory,
            "SESSION_ERROR" => Code::Session,
            other => Code::Other(crate::wire::shown(other)),
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Code::InvalidJson => "INVALID_JSON",
            Code::UnknownType => "UNKNOWN_TYPE",
            Code::Validation => "VALIDATION_ERROR",
            Code::Execution => "EXECUTION_ERROR",
            Code::Capacity => "CAPACITY_REACHED",
            Code::Factory => "FACTORY_ERROR",
            Code::Session => "SESSION_ERROR",
            Code::Other(text) => text,
        })
    }
}

/// Why a server, or an answer of it, cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OpenEnvError {
    /// It could not be reached, refused, or did not answer.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It says that something is wrong.
    #[error("`{url}` says `{code}`: {said}")]
    Said {
        /// The server.
        url: String,
        /// What kind of trouble.
        code: Code,
        /// In its words.
        said: String,
    },
    /// The connection ended, or is of no use after a deadline.
    #[error("the session at `{url}` is over: {reason}")]
    Closed {
        /// The server.
        url: String,
        /// Why.
        reason: String,
    },
    /// It keeps no environment between requests.
    #[error("`{url}` keeps no environment between HTTP requests: needed a server that does, or a WebSocket")]
    NoSession {
        /// The server.
        url: String,
    },
    /// A reward that is no finite number.
    #[error("`{url}` gave the reward `{got}`, needed a finite number or none")]
    Reward {
        /// The server.
        url: String,
        /// What it gave.
        got: String,
    },
}
