module slipway/runtime-hook

go 1.22

require (
	github.com/cyphar/filepath-securejoin v0.7.0
	github.com/opencontainers/runtime-spec v1.3.0
	github.com/pelletier/go-toml/v2 v2.2.4
	golang.org/x/sys v0.30.0
)

require cyphar.com/go-pathrs v0.2.5 // indirect
