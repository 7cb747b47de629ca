package tinyclone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"slipway/images"
	"slipway/layers/run"
)

// Isar fills a folder with a project of a board that Isar's bitbake builds. The layer is
// that of Slipway's clone, the folder that this runs in. SLIPWAY_LOCAL=isar=FOLDER names a
// checkout of Isar where no server is to be asked.
func Isar(dir string, spec images.Spec) (Clone, error) {
	if os.Geteuid() == 0 {
		return Clone{}, errors.New("bitbake does not build as root\nnext: run this as a normal user in the group sbuild")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Clone{}, err
	}
	source, err := filepath.Abs(".")
	if err != nil {
		return Clone{}, err
	}
	c := Clone{Dir: dir, Board: spec.Board, Built: images.Options{Dir: filepath.Join(dir, "build")}.BoardDir(spec)}
	project := filepath.Join(dir, "images/boards", spec.Board, "kas.yml")
	if err := os.MkdirAll(filepath.Dir(project), 0o755); err != nil {
		return Clone{}, err
	}
	return c, os.WriteFile(project, fmt.Appendf(nil, `header:
  version: 14
  includes: [{repo: slipway, file: images/boards/%s/kas.yml}]
repos:
  slipway: {path: %q}
`, spec.Board, source), 0o644)
}

// RemoveBuilt removes what bitbake built. Files of root file systems are root's.
func (c Clone) RemoveBuilt(ctx context.Context) error {
	return run.Run(ctx, run.Command{Argv: []string{"sudo", "-n", "rm", "-rf", "--one-file-system", filepath.Join(c.Built, "bitbake/tmp")}})
}

// Key makes a key in a folder, and returns the variables with which a build signs updates.
func Key(ctx context.Context, dir string) (variables []string, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, cert := filepath.Join(dir, "key.pem"), filepath.Join(dir, "cert.pem")
	request := []string{"openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=trial", "-keyout", key, "-out", cert}
	return []string{"RAUC_KEY_FILE=" + key, "RAUC_CERT_FILE=" + cert, "RAUC_KEYRING_FILE=" + cert}, run.Run(ctx, run.Command{Argv: request})
}
