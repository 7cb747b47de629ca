package bench

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"path/filepath"

	"slipway/ci/dev/tinyboard"
	"slipway/layers/progress"
	"slipway/layers/run"
)

const (
	nvidiaModule  = "github.com/NVIDIA/nvidia-container-toolkit"
	nvidiaVersion = "v1.20.1"
)

// buildPeers builds NVIDIA's programs in dir.
func buildPeers(ctx context.Context, dir string) error {
	return progress.Run(ctx, "NVIDIA's container toolkit", func(*progress.Step) (string, error) {
		info, err := buildinfo.ReadFile(filepath.Join(dir, "nvidia-container-runtime"))
		if err == nil && info.Main.Version == nvidiaVersion {
			return nvidiaVersion, nil
		}
		return nvidiaVersion, run.Run(ctx, run.Command{
			Argv: []string{"go", "install", nvidiaModule + "/cmd/...@" + nvidiaVersion},
			Env:  []string{"GOBIN=" + dir},
			Log:  filepath.Join(dir, "install.log"),
		})
	})
}

// configurePeer writes the configuration of NVIDIA's runtime, with some of its hooks
// disabled.
func (b *hookBench) configurePeer(disabled string) func(*tinyboard.Container) error {
	config := fmt.Sprintf(`[nvidia-ctk]
path = %q
[nvidia-container-runtime-hook]
path = %q
[nvidia-container-runtime]
mode = "csv"
runtimes = ["runc"]
[nvidia-container-runtime.modes.jit-cdi]
nvcdi-disable-hooks = [%s]
`, filepath.Join(b.peers, "nvidia-ctk"), filepath.Join(b.peers, "nvidia-container-runtime-hook"), disabled)
	return func(c *tinyboard.Container) error {
		c.RequestDevices()
		return tinyboard.Write("/etc/nvidia-container-runtime/config.toml", []byte(config), 0o644)
	}
}

// peerCDI has NVIDIA's program write a CDI spec of the board.
func (b *hookBench) peerCDI(ctx context.Context) (func(*tinyboard.Container) error, error) {
	dir := filepath.Join(b.board.Dir, "cdi.peer")
	return newCDIEdit(ctx, dir, filepath.Join(b.peers, "nvidia-ctk"), "cdi", "generate", "--mode=csv",
		"--nvidia-cdi-hook-path="+filepath.Join(b.peers, "nvidia-cdi-hook"), "--output="+filepath.Join(dir, "board.yaml"))
}
