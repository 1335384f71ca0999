//! The servers, each with a tool that can be called offline and without an account.
//!
//! Each server has a test. `<work>` is the folder in which it works. A server of a remote service
//! gets an invalid key, and answers that it cannot reach the service.

/// A server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) package: Package,
    pub(crate) args: &'static [&'static str],
    pub(crate) env: &'static [(&'static str, &'static str)],
    pub(crate) tool: &'static str,
    /// The arguments of a good call, as JSON.
    pub(crate) arguments: &'static str,
}

/// The package that a server is in.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Package {
    Npm(&'static str),
    Python {
        /// The list in `real/zoo/python` that has the package, and the environment made of it.
        list: &'static str,
        package: &'static str,
        program: &'static str,
    },
}

/// An SDK version whose servers do not answer an unknown method, and read nothing after it.
const DEAF_AFTER_UNKNOWN_METHODS: &str = "mcp-1.2";

impl Server {
    /// Returns the name that the server has behind xy.
    pub(crate) fn id(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Returns true if the server answers methods that it does not know.
    pub(crate) fn answers_unknown_methods(&self) -> bool {
        !matches!(self.package, Package::Python { list: DEAF_AFTER_UNKNOWN_METHODS, .. })
    }
}

const fn npm(package: &'static str) -> Package {
    Package::Npm(package)
}

const fn python(list: &'static str, package: &'static str, program: &'static str) -> Package {
    Package::Python { list, package, program }
}

macro_rules! servers {
    ($($name:ident {
        $package:expr, args: [$($arg:expr),*],
        env: [$($variable:expr),*],
        call: $tool:expr, $arguments:expr
    })*) => {
        $(
            #[expect(non_upper_case_globals, reason = "it is named like its test")]
            const $name: Server = Server {
                name: stringify!($name),
                package: $package,
                args: &[$($arg),*],
                env: &[$($variable),*],
                tool: $tool,
                arguments: $arguments,
            };
        )*

        /// All servers, in the order of the table.
        pub(crate) const ALL: &[&Server] = &[$(&$name),*];

        mod same {
            $(
                #[test]
                fn $name() {
                    crate::compare_server(&super::$name);
                }
            )*
        }
    };
}

servers! {
    everything { npm("@modelcontextprotocol/server-everything"), args: [],
        env: [],
        call: "get-sum", r#"{"a":1,"b":2.5}"# }
    filesystem { npm("@modelcontextprotocol/server-filesystem"), args: ["<work>"],
        env: [],
        call: "read_text_file", r#"{"path":"<work>/note.txt"}"# }
    memory { npm("@modelcontextprotocol/server-memory"), args: [],
        env: [("MEMORY_FILE_PATH", "<work>/memory.jsonl")],
        call: "create_entities", r#"{"entities":[{"name":"one","entityType":"number","observations":["odd"]}]}"# }
    sequential_thinking { npm("@modelcontextprotocol/server-sequential-thinking"), args: [],
        env: [],
        call: "sequentialthinking", r#"{"thought":"one","nextThoughtNeeded":false,"thoughtNumber":1,"totalThoughts":1}"# }
    github { npm("@modelcontextprotocol/server-github"), args: [],
        env: [("GITHUB_PERSONAL_ACCESS_TOKEN", "none")],
        call: "search_repositories", r#"{"query":"one"}"# }
    slack { npm("@modelcontextprotocol/server-slack"), args: [],
        env: [("SLACK_BOT_TOKEN", "none"), ("SLACK_TEAM_ID", "none")],
        call: "slack_list_channels", r#"{"limit":1}"# }
    google_maps { npm("@modelcontextprotocol/server-google-maps"), args: [],
        env: [("GOOGLE_MAPS_API_KEY", "none")],
        call: "maps_geocode", r#"{"address":"Bern"}"# }
    pdf { npm("@modelcontextprotocol/server-pdf"), args: ["--stdio"],
        env: [],
        call: "read_pdf_bytes", r#"{"url":"file:///nothing.pdf"}"# }
    budget_allocator { npm("@modelcontextprotocol/server-budget-allocator"), args: ["--stdio"],
        env: [],
        call: "get-budget-data", "{}" }
    video_resource { npm("@modelcontextprotocol/server-video-resource"), args: ["--stdio"],
        env: [],
        call: "play_video", r#"{"videoId":"bunny-1mb"}"# }
    context7 { npm("@upstash/context7-mcp"), args: [],
        env: [],
        call: "resolve-library-id", r#"{"query":"one","libraryName":"one"}"# }
    supabase { npm("@supabase/mcp-server-supabase"), args: ["--access-token", "none"],
        env: [],
        call: "list_projects", "{}" }
    mongodb { npm("mongodb-mcp-server"), args: [],
        env: [("MDB_MCP_TELEMETRY", "disabled")],
        call: "list-connections", "{}" }
    dbhub { npm("@bytebase/dbhub"), args: ["--dsn", "sqlite:///:memory:", "--transport", "stdio"],
        env: [],
        call: "execute_sql", r#"{"sql":"select 1 as one"}"# }
    obsidian_2 { npm("obsidian-mcp"), args: ["<work>/vault"],
        env: [],
        call: "obsidian_list_vaults", "{}" }
    searxng { npm("mcp-searxng"), args: [],
        env: [("SEARXNG_URL", "http://127.0.0.1:9")],
        call: "searxng_search_suggestions", r#"{"query":"one"}"# }
    playwright { npm("@playwright/mcp"), args: ["--headless", "--executable-path", "/nothing"],
        env: [],
        call: "browser_close", "{}" }
    chrome_devtools { npm("chrome-devtools-mcp"), args: ["--headless", "--executablePath", "/nothing", "--no-usage-statistics"],
        env: [],
        call: "list_pages", "{}" }
    firecrawl { npm("firecrawl-mcp"), args: [],
        env: [("FIRECRAWL_API_KEY", "none"), ("FIRECRAWL_RETRY_MAX_ATTEMPTS", "1")],
        call: "firecrawl_map", r#"{"url":"https://example.com/"}"# }
    tavily { npm("tavily-mcp"), args: [],
        env: [("TAVILY_API_KEY", "none")],
        call: "tavily_search", r#"{"query":"one"}"# }
    exa { npm("exa-mcp-server"), args: [],
        env: [("EXA_API_KEY", "none")],
        call: "web_search_exa", r#"{"query":"one"}"# }
    brave { npm("@brave/brave-search-mcp-server"), args: [],
        env: [("BRAVE_API_KEY", "none")],
        call: "brave_web_search", r#"{"query":"one"}"# }
    notion { npm("@notionhq/notion-mcp-server"), args: [],
        env: [("NOTION_TOKEN", "none")],
        call: "API-get-self", "{}" }
    figma { npm("figma-developer-mcp"), args: ["--stdio"],
        env: [("FIGMA_API_KEY", "none")],
        call: "get_figma_data", r#"{"fileKey":"one"}"# }
    desktop_commander { npm("@wonderwhy-er/desktop-commander"), args: ["--no-onboarding"],
        env: [],
        call: "read_file", r#"{"path":"<work>/note.txt"}"# }
    kubernetes { npm("mcp-server-kubernetes"), args: [],
        env: [],
        call: "kubectl_get", r#"{"resourceType":"pods"}"# }
    airtable { npm("airtable-mcp-server"), args: [],
        env: [("AIRTABLE_API_KEY", "none")],
        call: "list_bases", "{}" }
    hostinger { npm("hostinger-api-mcp"), args: [],
        env: [("API_TOKEN", "none")],
        call: "hosting_listJsDeployments", r#"{"domain":"example.com"}"# }
    chart { npm("@antv/mcp-server-chart"), args: [],
        env: [],
        call: "generate_bar_chart", r#"{"data":[{"category":"one","value":1}]}"# }
    eslint { npm("@eslint/mcp"), args: [],
        env: [],
        call: "lint-files", r#"{"filePaths":["<work>/note.txt"]}"# }
    perplexity { npm("@perplexity-ai/mcp-server"), args: [],
        env: [("PERPLEXITY_API_KEY", "none")],
        call: "perplexity_search", r#"{"query":"one"}"# }
    obsidian_1 { npm("mcp-obsidian"), args: ["<work>/vault"],
        env: [],
        // The server lower-cases every path, so it finds no note.
        call: "read_notes", r#"{"paths":[]}"# }
    duckduckgo { npm("duckduckgo-mcp-server"), args: [],
        env: [],
        call: "duckduckgo_web_search", r#"{"query":"one"}"# }
    git_npm { npm("@cyanheads/git-mcp-server"), args: [],
        env: [("MCP_LOG_LEVEL", "error")],
        call: "git_log", r#"{"path":"<work>/repo"}"# }
    drawio { npm("@drawio/mcp"), args: [],
        env: [],
        call: "list_pages", r#"{"path":"<work>/page.drawio"}"# }
    hello_world { npm("mcp-hello-world"), args: [],
        env: [],
        call: "add", r#"{"a":1,"b":2.5}"# }
    linear { npm("@tacticlaunch/mcp-linear"), args: [],
        env: [("LINEAR_API_TOKEN", "none")],
        call: "linear_getViewer", "{}" }
    taskmanager { npm("@kazuph/mcp-taskmanager"), args: [],
        env: [("TASK_MANAGER_FILE_PATH", "<work>/tasks.json")],
        call: "request_planning", r#"{"originalRequest":"one","tasks":[{"title":"two","description":"three"}]}"# }
    time { python("mcp-2", "mcp-server-time", "mcp-server-time"), args: ["--local-timezone", "UTC"],
        env: [],
        call: "convert_time", r#"{"source_timezone":"UTC","time":"12:00","target_timezone":"Asia/Tokyo"}"# }
    git { python("mcp-2", "mcp-server-git", "mcp-server-git"), args: ["--repository", "<work>/repo"],
        env: [],
        call: "git_log", r#"{"repo_path":"<work>/repo"}"# }
    fetch { python("mcp-2", "mcp-server-fetch", "mcp-server-fetch"), args: ["--ignore-robots-txt"],
        env: [],
        call: "fetch", r#"{"url":"http://127.0.0.1:9/"}"# }
    duckduckgo_python { python("mcp-2", "duckduckgo-mcp-server", "duckduckgo-mcp-server"), args: [],
        env: [],
        call: "search", r#"{"query":"one"}"# }
    excel { python("mcp-2", "excel-mcp-server", "excel-mcp-server"), args: ["stdio"],
        env: [],
        call: "create_workbook", r#"{"path":"<work>/one.xlsx"}"# }
    alchemy { python("mcp-2", "mcp-alchemy", "mcp-alchemy"), args: [],
        env: [("DB_URL", "sqlite:///<work>/alchemy.db")],
        call: "execute_query", r#"{"query":"select 1 as one"}"# }
    pandoc { python("mcp-2", "mcp-pandoc", "mcp-pandoc"), args: [],
        env: [],
        call: "convert-contents", r#"{"contents":"One","input_format":"markdown","output_format":"html"}"# }
    openapi_proxy { python("mcp-2", "mcp-openapi-proxy", "mcp-openapi-proxy"), args: [],
        env: [("OPENAPI_SPEC_URL", "file://<work>/openapi.json")],
        call: "get_a", "{}" }
    aws_documentation { python("mcp-2", "awslabs.aws-documentation-mcp-server", "awslabs.aws-documentation-mcp-server"), args: [],
        env: [],
        call: "read_documentation", r#"{"url":"https://docs.aws.amazon.com/one.html"}"# }
    google_analytics { python("mcp-2", "google-analytics-mcp", "google-analytics-mcp"), args: [],
        env: [],
        call: "list_dimension_categories", "{}" }
    sequential_thinking_python { python("mcp-2", "mcp-sequential-thinking", "mcp-sequential-thinking"), args: [],
        env: [],
        call: "list_sessions", "{}" }
    sqlite { python("mcp-1", "mcp-server-sqlite", "mcp-server-sqlite"), args: ["--db-path", "<work>/one.db"],
        env: [],
        call: "read_query", r#"{"query":"select 1 as one"}"# }
    calculator { python("mcp-1", "mcp-server-calculator", "mcp-server-calculator"), args: [],
        env: [],
        call: "calculate", r#"{"expression":"2*21"}"# }
    shell { python("mcp-1", "mcp-shell-server", "mcp-shell-server"), args: [],
        env: [("ALLOW_COMMANDS", "echo")],
        call: "shell_execute", r#"{"command":["echo","one"],"directory":"<work>"}"# }
    cli { python("mcp-1", "cli-mcp-server", "cli-mcp-server"), args: [],
        env: [("ALLOWED_DIR", "<work>"), ("ALLOWED_COMMANDS", "cat"), ("ALLOWED_FLAGS", "all")],
        call: "run_command", r#"{"command":"cat note.txt"}"# }
    code_index { python("mcp-1", "code-index-mcp", "code-index-mcp"), args: [],
        env: [],
        call: "set_project_path", r#"{"path":"<work>"}"# }
    powerpoint { python("mcp-1", "office-powerpoint-mcp-server", "ppt_mcp_server"), args: [],
        env: [],
        call: "create_presentation", r#"{"id":"one"}"# }
    tree_sitter { python("mcp-1", "mcp-server-tree-sitter", "mcp-server-tree-sitter"), args: [],
        env: [],
        call: "register_project_tool", r#"{"path":"<work>","name":"one"}"# }
    email { python("mcp-1", "mcp-email-server", "mcp-email-server"), args: ["stdio"],
        env: [],
        call: "list_available_accounts", "{}" }
    arxiv { python("mcp-1", "arxiv-mcp-server", "arxiv-mcp-server"), args: ["--storage-path", "<work>/papers"],
        env: [],
        call: "list_papers", "{}" }
    time_2024 { python("mcp-1.2", "mcp-server-time", "mcp-server-time"), args: ["--local-timezone", "UTC"],
        env: [],
        call: "convert_time", r#"{"source_timezone":"UTC","time":"12:00","target_timezone":"Asia/Tokyo"}"# }
    git_2024 { python("mcp-1.2", "mcp-server-git", "mcp-server-git"), args: ["--repository", "<work>/repo"],
        env: [],
        call: "git_log", r#"{"repo_path":"<work>/repo"}"# }
    sqlite_2024 { python("mcp-1.2", "mcp-server-sqlite", "mcp-server-sqlite"), args: ["--db-path", "<work>/one.db"],
        env: [],
        call: "list-tables", "{}" }
    neo4j_modeling { python("fastmcp-2", "mcp-neo4j-data-modeling", "mcp-neo4j-data-modeling"), args: [],
        env: [],
        call: "validate_node", r#"{"node":{"label":"Person","key_property":{"name":"id","type":"STRING"},"properties":[]}}"# }
    word { python("fastmcp-2", "office-word-mcp-server", "word_mcp_server"), args: [],
        env: [],
        call: "create_document", r#"{"filename":"<work>/one.docx"}"# }
    json_yaml_toml { python("fastmcp-3", "mcp-json-yaml-toml", "mcp-json-yaml-toml"), args: [],
        env: [],
        call: "constraint_list", "{}" }
    atlassian { python("fastmcp-3", "mcp-atlassian", "mcp-atlassian"), args: [],
        env: [
             ("JIRA_URL", "https://example.com"),
             ("JIRA_USERNAME", "none"),
             ("JIRA_API_TOKEN", "none")],
        call: "jira_get_issue", r#"{"issue_key":"ONE-1"}"# }
    airflow { python("fastmcp-3", "astro-airflow-mcp", "astro-airflow-mcp"), args: ["--airflow-url", "http://127.0.0.1:9"],
        env: [],
        call: "list_pools", "{}" }
    nixos { python("fastmcp-4", "mcp-nixos", "mcp-nixos"), args: [],
        env: [],
        call: "nix_versions", r#"{"package":"one"}"# }
    clickhouse { python("fastmcp-4", "mcp-clickhouse", "mcp-clickhouse"), args: [],
        env: [
             ("CLICKHOUSE_HOST", "127.0.0.1"),
             ("CLICKHOUSE_PORT", "9"),
             ("CLICKHOUSE_USER", "none"),
             ("CLICKHOUSE_PASSWORD", ""),
             ("CLICKHOUSE_SECURE", "false")],
        call: "run_query", r#"{"query":"select 1"}"# }
    motherduck { python("fastmcp-4", "mcp-server-motherduck", "mcp-server-motherduck"), args: ["--db-path", ":memory:", "--read-write"],
        env: [],
        call: "execute_query", r#"{"sql":"select 1 as one"}"# }
}
