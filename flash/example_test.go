package flash_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"slipway/flash"
	"slipway/flash/device"
	"slipway/images"
)

// An artifact is a folder with files and artifact.json. Here its image is written to a
// virtual disk.
func ExampleWrite() {
	folder, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)

	image := make([]byte, 1<<20)
	copy(image[446:], []byte{4: 0x83, 8: 1, 13: 4, 64: 0x55, 65: 0xaa}) // one partition of Linux, from sector 1
	copy(image[512:], "hello")
	if err := os.WriteFile(filepath.Join(folder, "disk.img"), image, 0o644); err != nil {
		log.Fatal(err)
	}
	sum := sha256.Sum256(image)
	built := images.Artifact{Board: "lab", Files: []images.File{{
		Kind: images.DiskImage, Name: "disk.img", SizeBytes: int64(len(image)), SHA256: hex.EncodeToString(sum[:]),
	}}}
	if err := built.Save(folder); err != nil {
		log.Fatal(err)
	}
	artifact, err := images.OpenArtifact(folder)
	if err != nil {
		log.Fatal(err)
	}

	board := images.Spec{Board: "lab", Flash: images.Flash{Kinds: []string{device.File}}}
	disk := filepath.Join(folder, "machine", "disk.img")
	receipt, err := flash.Write(context.Background(), board, artifact, disk, flash.Options{})
	if err != nil {
		log.Fatal(err)
	}
	written, err := os.ReadFile(disk)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes, read back: %v\n", receipt.ImageBytes, receipt.ReadBack)
	fmt.Printf("%s\n", written[512:517])
	// Output:
	// 1048576 bytes, read back: true
	// hello
}
