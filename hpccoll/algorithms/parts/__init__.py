"""What several families are built from: trees and walks over them, folding, routes."""
